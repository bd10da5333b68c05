"""The HTTP servers of Hourglass: authentication and limits, shared by the web UI, the codec server and the
status endpoint.

Must not know: engines, pages, ASGI. Every server uses `Access` for tokens, `OwnNames` for `Host` and `Origin`,
and a `ConnectionGate` for its connections.

access tokens, cookies, one-time links, and the limit on guesses names the names of a server in the headers
`Host` and `Origin` limits the maximum number of connections of a server, and the timeouts of its requests
server a small HTTP/1.1 server on asyncio, for the codec server and the status endpoint
"""
