mod work; fn main() {}
