"""One file, several processes.

ownership, descriptors, meeting     the lock, forks, where they meet
frames, wire, serving, remote       what they say, the owner's side, the client's side
engine_room, interruption, alone, asking, host      an open engine; how a request finds one; who owns
repeats                             requests whose answer was lost
file_handle, file_connection        a worker's and a client's door to a file
"""
