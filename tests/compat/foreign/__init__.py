"""Histories of other SDKs, and the plain functions that must replay them.

`typescript/` holds what Temporal's TypeScript SDK recorded on a real server, one file for each run, `typescript_1_10/` and
`typescript_1_8/` what releases of before 2025 did; `typescript_twins`, `typescript_cancelling`, `typescript_everyday` and
`typescript_random` hold the same programs as plain functions, under the names of the workflow types. `go/` holds what a
server's own workflows recorded, which are written with Go's SDK; `go_twins` are the same as plain functions. `writer` writes
what could not be recorded: Java's histories, and those of first years.
"""
