# What torch/CMakeLists.txt writes: which torch this build is for.
VERSION: str  # of Thinwire
TORCH: str
CXX11_ABI: bool  # whether its std::string is that of GCC's new ABI
