"""What an engine has to serve: five ports in domain words, each verb of them one atomic step.

The interface is blocking on purpose, and there is only one of it. A process with an event loop
makes all its calls from one worker thread, so that they keep their order. A time that a caller
gives (`now`) is shown to people and compared with the same caller's clock; leases run by the
store's own clock. Verbs with a body are the same on all engines, out of the few steps (`_…`) in
which the engines differ. What all engines do alike with rows is here as well.
"""
