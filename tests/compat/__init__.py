"""Histories recorded by Temporal's Python SDK, and the plain functions that must replay them.

`programs/` holds asynchronous `temporalio` workflows, each with the script by which it was driven; `twins/`
holds the same programs as plain functions, file by file and name by name; `histories/` holds what `record`
saw on a real server; `generated` makes random programs as data, which one interpreter on either side
executes.
"""
