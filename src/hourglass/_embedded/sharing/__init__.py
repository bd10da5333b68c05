"""One file, several processes: one owns it and works, the others reach it over a Unix socket.

unix_socket  the socket beside the file, frames on it, and descriptors that a forked child must not keep
wire         what the owner and its clients say to each other, as data and as MessagePack
ownership    which process owns a file: an `flock` on a second file beside it, never on the database
remote       a client's side of the socket
open_engine  an engine over a file, open in this process, and the calls under way on it
serving      the owner's side of the socket
ownerless    one short transaction of a client's own, while no process owns the file
calls        a call by whatever way leads to an engine
shared_file  this process's part in a file: its client, its owner, or standing by; its workers' handles
connection   the door for clients and workers
"""
