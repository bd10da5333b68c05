"""One file, several processes: one owns it and runs its engine; the others ask that one over a Unix socket, and work for
it.

**Who owns the file.** The process that has an exclusive POSIX record lock on `FILE-lock`, a second file beside it
(`ownership`). A process wants the lock while it has a worker, and only then (`shared_file`). The kernel drops the lock with the
process, however that ends: no lease has to expire. Only the owner opens the store for long; each opening begins an epoch in the
file, and a commit of an earlier epoch is refused, so that a process which lost its lock unawares can write nothing. Locks beside
a path do not exclude those who use another name of the file (hard links, a mount of the single file): the store refuses such
files, and has a lock on the database itself. A process whose file was replaced or moved away never opens it again (`FileLost`).

**How a process asks.** A request takes the first of three ways that leads to an engine (`calls`):

    this process owns the file     its engine answers (`open_engine`): no socket, no copy
    another process owns it        it is asked over the socket `FILE-sock` (`remote` asks, `serving` answers, in `wire`'s
                                   messages, as frames of `unix_socket`)
    no process owns it             this one takes the lock for one short transaction (`ownerless`); what only a worker
                                   can answer waits for an owner

**How a process works.** Every process with a worker works. In the owner's a worker has the engine's own handle; in any
other it has a `remote_handle`, and the owner has the engine's handle that stands for it (`worker_peer`). What one gives
out the other gets: activations and attempts as far as it has slots, completions and results back. A run stays with
the process that has begun it, its activities go where least is in hand, and the owner's process takes less the busier its
engine keeps it, but most of what is light: to send that costs as much as to do it. When a connection ends, what the
process had is given to others at once: its tasks are wanted again, its attempts count as lost, and are tried again as
their policies say.

**What happens at a takeover.** When the owner ends, its connections end; that is the sign for those that worked for it to
try for the lock, and one of them gets it, opens the file, takes up what was in flight, and listens. Their handles break,
and their workers open others. Attempts of activities go on in the processes that have them: the next owner, which reads in
the note of the lock who else worked, keeps them for a while, and each process claims its own (`Holding`), also one whose
engine failed; results and heartbeats of
them go by the calls of clients. A worker keeps each result until the owner confirms that it is durable (`ResultsStored`); what
was not confirmed goes to the next owner right after the claim. Attempts that a living process has not claimed were never begun
there, and are given to others. Requests whose answer was lost are sent again: the id of each tells the next owner whether
it was carried out. An owner that is stopped keeps the lock; it reports every second that it runs, and its peers log
it when that stops. An owner that ends in order closes the file before it drops the lock, and drops the lock before it
hangs up.

Nothing here knows which kind of store the file is: a `StoreOpener` opens it (see `store.store`).

unix_socket    the socket beside the file, frames on it, and descriptors that a forked child must not keep
wire           what the owner and its clients say to each other, as data and as MessagePack
ownership      which process owns a file: a record lock on a second file beside it
remote_handle  a worker's handle on the engine of another process
remote         a client's side of the socket
open_engine    an engine over a file that is open in this process
worker_peer    the owner's side of a process that works for it
serving        the owner's side of the socket
ownerless      one short transaction of a client's own, while no process owns the file
repeated_requests  whether a request whose answer was lost had been carried out
calls          a call by whatever way leads to an engine
shared_file    this process's part in a file: its client, its owner, or working for it; its workers' handles
connection     the door for clients and workers
"""
