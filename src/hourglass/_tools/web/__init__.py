"""The page: every workflow in a browser, on a file, in memory or on a Temporal server. Extra `ui` of the package.

Must not know: engines. It uses the public client, the story and the replayer, and nothing below them; a page is made from data by
a function that can be called without a server (`pages`), the handlers (`reading`, `actions`) only ask and choose.

server     serves the web UI: address, credentials, limits on connections
app        the routes, and how each is answered; server-sent events
reading    what is read: the handlers of all pages
actions    what is done: the handlers of all forms
requests   the parameters of a request, and the parts that all responses share
security   which requests are answered: hosts, origins, login, sizes of bodies; the headers of every answer
login      from a token or a one-time link to a cookie
addresses  of pages: ids that may hold anything, in paths
replays    time travel in a child process: its deadline, its environment, its codec
replay_child the program of that process, and the messages between the two
site       what the pages are about: a client that can be reached or not, code, what may be shown and done
finding    from the fields of a form to a filter, and to a page of the list
calendar   the days of a year on which a schedule acts
run_view   what the pages of one run are made of beyond its story: links, resets, values that are hidden
waterfall  the story of a run as rows of bars
forms      from text in a form to the arguments of a workflow, a signal, an update
bulk       one thing done to many runs, in the background, with its progress
pages      pages from data: the only user of templates
"""
