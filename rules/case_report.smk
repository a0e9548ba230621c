# What people read of volumes.
