"""A job that joins and leaves."""

import farandole.torch as hvd

hvd.init()
hvd.shutdown()
