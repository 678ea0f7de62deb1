"""Work on episodes between their end and their recording: judging. It runs beside the play."""
