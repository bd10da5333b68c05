"""Effects: the control loop and its portal, poll loops, lanes, activity executors, and how a target becomes a connection.

No thread that runs user code runs ours: workflow code runs in lanes, activities in threads and on a loop of their own; the
control loop runs everything else and nothing of the user's.
"""
