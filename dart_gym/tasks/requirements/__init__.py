"""What tasks need from a machine, known before anything starts: files, sites, programs, and why one cannot run here."""
