"""The queue: submit commands, list jobs, change the queue, and send notifications."""
