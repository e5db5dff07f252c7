"""What every room uses: types, contracts, the log, threads and pickling."""
