"""The interface of every engine: handles for workers, requests for clients. Data and protocols only.

handle       a worker's open connection to an engine for one task queue
tuning       the number of concurrent tasks and polls of a worker
service      `Request`, the protocol of a connection, checks of requests, and new ids
workflows    requests about workflows, and their answers
activities   requests about standalone activities and activities that complete asynchronously
schedules    requests about schedules, Temporal's cron dialect, and a server's checks
deployments  requests about worker versions, task queues, pollers, namespaces and search attributes
progress     requests about progress that activities publish, and how heartbeats carry it to a server
limits       messages between a run and the keeper of a limit, and the rules of slots, turns and bursts
transport    options of a connection to a server: TLS, keep-alive, retries, proxy, compression
"""
