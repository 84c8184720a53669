"""The node's keys, and the journal of what each has signed: a key never signs two statements that contradict."""
