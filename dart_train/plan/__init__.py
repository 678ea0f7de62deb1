"""What a run takes before it begins: memory of trainer and engines, of the host, disk, time, and who waits for whom."""
