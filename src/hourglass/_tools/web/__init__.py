"""The web UI: every workflow in a browser, in a file, in memory or on a Temporal server. Needs the package
extra `ui`.

Must not know: engines. The web UI only uses the public client, the story and the replayer. Pages are rendered from data by
functions that can be called without a server (`pages`). The handlers (`reading`, `actions`) only query the client and select
the page.

    server       serves the web UI: address, credentials, limits on connections
    app          the routes and their handlers' threads; server-sent events
    reading      the handlers of all pages
    actions      the handlers of all forms
    requests     the parameters of a request, and the parts that all responses share
    security     rejects requests by host, origin, login and body size; the headers of every response
    login        exchanges a token or a one-time link for a cookie
    addresses    paths of pages, for ids with any characters
    replays      time travel in a child process: its deadline, its environment, its codec
    replay_child the program of that process, and the messages between the two
    site         the data source of the pages: a client and its health, loaded code, permissions
    finding      from the fields of a form to a filter, and to a page of the list
    calendar     the days of a year on which a schedule acts
    run_view     data for the pages of one run besides its story: links, resets, hidden values
    waterfall    the story of a run as rows of bars
    forms        from text in a form to the arguments of a workflow, a signal or an update
    bulk         one action on many runs, in the background, with its progress
    pages        renders pages from data: the only user of templates
"""
