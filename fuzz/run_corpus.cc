// Stands in for libFuzzer where there is none: runs the target over every input of a folder. A file is an
// input, and so is every beginning of it, since frames are cut short in real life; a file *.hex has one on
// each line.

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

std::size_t run_with_beginnings(std::ifstream& file) {
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  for (std::size_t size = 0; size <= bytes.size(); ++size) {
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), size);
  }
  return 1;
}

std::size_t run_lines(std::ifstream& file) {
  std::size_t inputs = 0;
  for (std::string line; std::getline(file, line); ++inputs) {
    std::vector<std::uint8_t> bytes;
    for (std::size_t at = 0; at + 1 < line.size(); at += 2) {
      bytes.push_back(static_cast<std::uint8_t>(std::stoul(line.substr(at, 2), nullptr, 16)));
    }
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  return inputs;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s CORPUS_FOLDER\n", argv[0]);
    return 2;
  }
  std::size_t inputs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    std::ifstream file(entry.path(), std::ios::binary);
    inputs += entry.path().extension() == ".hex" ? run_lines(file) : run_with_beginnings(file);
  }
  std::printf("%zu inputs\n", inputs);
  return inputs == 0 ? 1 : 0;
}
