from farandole.compat.horovodrun import check_build, parse_args, run_commandline

__all__ = ["check_build", "parse_args", "run_commandline"]
