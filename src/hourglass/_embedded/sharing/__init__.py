"""One file, several processes: one owns it and works, the others reach it over a Unix socket.

unix_socket      the socket beside the file, frames on it, and descriptors that a forked child must not keep
wire             what the owner and its clients say to each other, as data and as MessagePack
ownership        which process owns a file: an `flock` on a second file beside it, never on the database
remote           a client's side of the socket
engine_room      an engine over a file, open in this process, and the calls under way on it
serving          the owner's side of the socket
ownerless        one short transaction of a client's own, while no process owns the file
calls            a call by whatever way leads to an engine
file_handle      a worker's handle: waits while another process owns the file
host             this process's part in a file: its client, its owner, or standing by
file_connection  the door for clients and workers
"""
