"""The parcel: one `.npz` file of jobs, results or shared data; how it is packed and read."""
