"""One file shared by several processes: one process owns it and runs its engine; the others send it requests over a
Unix socket and execute work for it.

**Ownership.** The owner is the process that has an exclusive POSIX record lock on `FILE-lock`, a second file beside the
database (`ownership`). A process tries to acquire the lock only while it has a worker (`shared_file`). The kernel
releases the lock when the process ends, however it ends: no lease has to expire. Only the owner keeps the store open.
Each opening begins an epoch in the file, and a commit of an earlier epoch is rejected, so that a process that lost its
lock without noticing cannot write. A lock beside a path does not exclude processes that use another name of the file
(hard links, a mount of the single file): the store rejects such files, and locks the database itself. A process whose
file was replaced or moved away never opens it again (`FileLost`).

**Requests.** A request takes the first of three routes that leads to an engine (`calls`):

    this process owns the file     its engine answers (`open_engine`): no socket, no copy
    another process owns it        the request goes over the socket `FILE-sock` (`remote` sends, `serving` answers, with
                                   the messages of `wire`, as frames of `unix_socket`)
    no process owns it             this process takes the lock for one short transaction (`ownerless`); a request that
                                   only a worker can answer waits for an owner

**Work.** Every process with a worker executes work. In the owner, a worker uses the engine's own handle. In any other
process it uses a `remote_handle`, and the owner has the engine's handle that represents it (`worker_peer`). The owner
sends activations and attempts within the limit of the worker's slots, and receives completions and results. A run stays
with the process that began it; its activities go to the process with the least work in progress. The busier the owner's
engine keeps its process, the less work that process accepts. The exception is light work, because it costs as much to
send as to execute: the owner's process executes most of it. When a connection ends, the work of its process goes to
others immediately: its workflow tasks are dispatched again, its attempts count as lost and are retried by their
policies.

**Takeover.** When the owner ends, its connections end. This is the signal for the processes that worked for the owner
to try to acquire the lock. One of them succeeds, opens the file, restores the work in progress, and listens. The old
handles break, and the workers open new ones. Attempts continue in their processes: the next owner reads from the lock's
note which other processes worked on the file, and reserves their attempts for a while until each process claims its own
(`Holding`). A former owner whose engine failed also claims its attempts. Results and heartbeats of these attempts are
sent as client requests. A worker keeps each result until the owner confirms that it is durable (`ResultsStored`);
unconfirmed results go to the next owner directly after the claim. An attempt that a living process has not claimed
never began there, and goes to another process. Requests without an answer are sent again; by its id, the next owner
recognizes a request that was already carried out. A stopped owner keeps the lock; an owner reports every second that it
is running, and its peers log when the reports stop. An owner that ends normally closes the file before it releases the
lock, and releases the lock before it disconnects.

Nothing here depends on the kind of store: a `StoreOpener` opens it (see `store.store`).

unix_socket    the socket beside the file, frames, and descriptors that a forked child must not keep
wire           the messages between owner and clients, as data and as MessagePack
ownership      the lock that determines the owner
remote_handle  a worker's handle on the engine of another process
remote         the client's side of the socket
open_engine    an engine over a file that is open in this process
worker_peer    the owner's side of a process that works for it
serving        the owner's side of the socket
ownerless      a short transaction of a client while no process owns the file
calls          routes a call to an engine
file_handle    a worker's handle on a file, on whichever engine serves the file
file_context   the state that the next three modules share, such as the work that outlives an owner
owning         this process as the owner: one term, from opening the engine to releasing the lock
following      this process's work for another process that owns the file
shared_file    the role of this process for a file: client, owner or worker for the owner
connection     the entry point for clients and workers
"""
