# The solver's C++ takes half the time without the last optimizations, and no test measures it.
set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG" CACHE STRING "")
# Eight files at a time, which read their headers once: as the solver's own build does it on other systems.
set(CMAKE_UNITY_BUILD ON CACHE BOOL "")
