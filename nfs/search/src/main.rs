mod patterns; fn main() {}
