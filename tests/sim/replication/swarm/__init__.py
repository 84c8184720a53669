"""A simulated network: the real machines of some nodes under a reactor with one seeded source of chance.

The reactor replaces sockets, disks, timers and threads: an inbox ordered by virtual time. Messages pass the real codecs
on every hop; they are delayed, lost, doubled and reordered; links are cut, clocks run apart, and nodes crash and lose
what was not synced. The invariants are checked whenever something becomes visible and every fifty steps; at the end the
faults stop and all honest nodes must converge.
"""
