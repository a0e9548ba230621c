"""Files in an object store (S3) or on a web server, read by ranges."""
