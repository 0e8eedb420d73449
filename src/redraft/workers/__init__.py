"""Worker processes: functions run there with limits on time and memory.

Code that reads untrusted text either takes linear time, or gets only short texts, or runs here: a
thread cannot be stopped, and a library that holds the interpreter's lock blocks every other thread
and the event loop. A call that exceeds a limit raises `ComputeLimitError`.

`pool` manages the workers, `worker` runs in one.
"""
