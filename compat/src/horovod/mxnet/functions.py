from farandole.mxnet import allgather_object, broadcast_object

__all__ = ["allgather_object", "broadcast_object"]
