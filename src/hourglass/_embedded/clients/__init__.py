"""What clients ask; answers wait for the store.

connection, requests, answering     a client's door, what it may ask, how it is answered
update_requests, reset_requests, schedule_requests, schedule_listing, watch_requests, deployment_requests
"""
