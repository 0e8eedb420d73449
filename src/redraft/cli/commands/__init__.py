"""The commands: each module holds one command of `redraft` and its work, and imports what is slow only when it runs."""
