"""Say whether Horovod works over MPI: run as `mpirun -n 2 python envs/two_ranks.py`.

Ends with status 0 where Horovod was built with MPI and two ranks add their numbers right.
"""

import horovod.tensorflow as hvd
import tensorflow as tf

hvd.init()
assert hvd.mpi_built(), "Horovod was built without MPI"
assert hvd.size() == 2, f"{hvd.size()} rank(s) in this world, not 2: mpirun and libmpi do not match"
total = hvd.allreduce(tf.constant([1.0 + hvd.rank(), 10.0]), op=hvd.Sum, name="check")
assert total.numpy().tolist() == [3.0, 20.0], f"the ranks' sum is {total.numpy()}, not [3, 20]"
