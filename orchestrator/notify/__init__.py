"""Telling people: the outbox on disk, Discord's webhook, and any other channel by a command. Knows no run and no Slurm."""
