"""Histories of other SDKs, and the plain functions that must replay them.

`typescript/` holds what Temporal's TypeScript SDK recorded on a real server, one file for each run; `typescript_twins`
and `typescript_cancelling` hold the same programs as plain functions, under the names of the workflow types. Go's and
Java's SDKs write histories of another make: `go/` holds recorded ones, and `writer` writes the shapes that could not be recorded.
"""
