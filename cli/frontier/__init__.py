"""The commands about frontiers: what lies in which slot, what a person does about it, the manager of workers."""
