"""What every engine offers: handles for workers, a service for clients. Data and protocols only, no engine.

handle       a worker's open connection to an engine for one task queue: polled and completed
tuning       how many tasks a worker takes at once, and how many polls it has out
service      what every request says of itself, and the protocol of a connection, which takes one; new ids
workflows    what a client can ask of workflows: requests and answers
activities   the same for activities: those of no workflow, and those that are completed from outside
schedules    the same for schedules, with Temporal's cron dialect and a server's checks
deployments  the same for versions of workers, task queues and their pollers, namespaces and search attributes
progress     the same for what activities publish, and how a server's heartbeats carry it
limits       what runs say to the keeper of a limit, and the rules of slots, turns and bursts
transport    how a connection to a server is made: TLS, keep-alive, retries, proxy, compression
"""
