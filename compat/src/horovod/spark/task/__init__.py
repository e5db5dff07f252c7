from farandole.spark import get_available_devices

__all__ = ["get_available_devices"]
