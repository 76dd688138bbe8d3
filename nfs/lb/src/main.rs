mod maglev; fn main() {}
