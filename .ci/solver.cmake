# The solver's C++ takes half the time without the last optimizations, and no test measures it.
set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG" CACHE STRING "")
