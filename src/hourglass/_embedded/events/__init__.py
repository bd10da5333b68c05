"""What happened: Temporal's history events as data, as JSON and as bytes. Pure.

history_base, history, history_others, history_updates, history_local       as data
history_json, history_others_json, history_updates_json, history_local_json, history_versions_json,
failure_json, json_parts            as JSON
encoding                            as bytes
"""
