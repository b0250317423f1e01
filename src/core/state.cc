#include "thinwire/state.h"

#include <array>
#include <cstring>
#include <istream>
#include <ostream>
#include <stdexcept>

#include "core/hashes.h"

namespace thinwire {
namespace {

constexpr char kMagic[] = "TWSTATE1";
constexpr char kFloats = 'f';
constexpr char kInteger = 'i';
constexpr char kReal = 'd';
constexpr char kText = 't';

const std::string kDeclaration = "kind/";
constexpr std::array<std::string_view, 2> kUnits = {"none", "gradient"};
constexpr std::array<std::string_view, 3> kRanks = {"same", "sum", "mean"};

std::string text_of(const StateKind& kind) {
  return "unit=" + std::string(kUnits[static_cast<std::size_t>(kind.unit)]) +
         " ranks=" + std::string(kRanks[static_cast<std::size_t>(kind.ranks)]) +
         " moves=" + (kind.moves ? "yes" : "no");
}

std::string text_in(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

[[noreturn]] void damaged(const std::string& what) {
  throw std::runtime_error("state file damaged: " + what);
}

class Source {
 public:
  explicit Source(std::istream& stream) : stream_(stream) {}
  void read(void* data, std::size_t size, const char* what) {
    stream_.read(static_cast<char*>(data), static_cast<std::streamsize>(size));
    if (static_cast<std::size_t>(stream_.gcount()) != size) damaged(std::string("it ends inside ") + what);
    checksum_.add(data, size);
  }
  std::uint64_t integer(const char* what) {
    std::uint64_t value = 0;
    read(&value, sizeof value, what);
    return value;
  }
  /// A block whose length the file claims: read in steps that double, so that a wrong length ends with the
  /// file instead of an allocation much larger than the file.
  template <class Container>
  void read_block(Container& block, std::uint64_t size, const char* what) {
    constexpr std::uint64_t kFirst = 1u << 12;
    while (block.size() < size) {
      const std::size_t old = block.size();
      block.resize(static_cast<std::size_t>(
          std::min<std::uint64_t>(size, old + std::max<std::uint64_t>(old, kFirst))));
      read(block.data() + old, block.size() - old, what);
    }
  }
  std::uint64_t checksum() const { return checksum_.value(); }

 private:
  std::istream& stream_;
  Fnv1a checksum_;
};

}  // namespace

void StateWriter::put_entry(std::string_view name, char type, const void* data, std::size_t bytes) {
  Entry entry;
  entry.type = type;
  entry.bytes.resize(bytes);
  if (bytes != 0) std::memcpy(entry.bytes.data(), data, bytes);
  if (!entries_.emplace(std::string(name), std::move(entry)).second) {
    throw std::invalid_argument("state has two entries called '" + std::string(name) + "'");
  }
}

void StateWriter::put(std::string_view name, Span<const float> values) {
  put_entry(name, kFloats, values.data(), values.size_bytes());
}
void StateWriter::put(std::string_view name, std::uint64_t value) {
  put_entry(name, kInteger, &value, sizeof value);
}
void StateWriter::put(std::string_view name, double value) {
  put_entry(name, kReal, &value, sizeof value);
}
void StateWriter::put(std::string_view name, std::string_view text) {
  put_entry(name, kText, text.data(), text.size());
}

void StateWriter::declare(const StateKind& kind) {
  const std::string name = kDeclaration + std::string(kind.name);
  const std::string text = text_of(kind);
  const auto known = entries_.find(name);
  if (known == entries_.end()) {
    put(name, std::string_view(text));
  } else if (text_in(known->second.bytes) != text) {
    throw std::invalid_argument("two systems declare state '" + std::string(kind.name) +
                                "' differently: give one of them another name");
  }
}

void StateWriter::copy(const StateReader& from, std::string_view name) {
  const auto& entry = from.find(name);
  put_entry(name, entry.type, entry.bytes.data(), entry.bytes.size());
}

void StateWriter::write(std::ostream& stream) const {
  Fnv1a checksum;
  auto emit = [&](const void* data, std::size_t size) {
    stream.write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
    checksum.add(data, size);
  };
  auto emit_integer = [&](std::uint64_t value) { emit(&value, sizeof value); };
  emit(kMagic, sizeof kMagic - 1);
  emit_integer(entries_.size());
  for (const auto& [name, entry] : entries_) {
    emit_integer(name.size());
    emit(name.data(), name.size());
    emit(&entry.type, 1);
    emit_integer(entry.bytes.size());
    emit(entry.bytes.data(), entry.bytes.size());
  }
  const std::uint64_t sum = checksum.value();
  emit_integer(sum);
  stream.flush();
  if (!stream) throw std::runtime_error("state could not be written: is the disk full?");
}

void StateWriter::absorb(StateWriter&& other) {
  for (const auto& [name, entry] : other.entries_) {
    const auto own = entries_.find(name);
    if (own != entries_.end() && !(own->second == entry)) {
      throw std::invalid_argument("two states have different entries called '" + name + "'");
    }
  }
  entries_.merge(std::move(other.entries_));
}

StateReader::StateReader(std::istream& stream) {
  Source source(stream);
  char magic[sizeof kMagic - 1];
  source.read(magic, sizeof magic, "the magic");
  if (std::memcmp(magic, kMagic, sizeof magic) != 0) damaged("it does not begin with TWSTATE1");
  const std::uint64_t count = source.integer("the entry count");
  for (std::uint64_t i = 0; i < count; ++i) {
    std::string name;
    source.read_block(name, source.integer("a name's length"), "a name");
    StateWriter::Entry entry;
    source.read(&entry.type, 1, "a type");
    if (std::strchr("fidt", entry.type) == nullptr || entry.type == '\0')
      damaged("'" + name + "' has an unknown type");
    const std::uint64_t bytes = source.integer("a length");
    const bool scalar = entry.type == kInteger || entry.type == kReal;
    if ((scalar && bytes != 8) || (entry.type == kFloats && bytes % sizeof(float) != 0)) {
      damaged("'" + name + "' has " + std::to_string(bytes) + " bytes, which its type cannot have");
    }
    source.read_block(entry.bytes, bytes, name.c_str());
    if (!entries_.emplace(name, std::move(entry)).second) damaged("'" + name + "' stands in it twice");
  }
  const std::uint64_t expected = source.checksum();
  if (source.integer("the checksum") != expected) damaged("the checksum does not match");
  if (stream.peek() != std::istream::traits_type::eof()) damaged("other bytes follow its end");
}

const StateWriter::Entry& StateReader::find(std::string_view name) const {
  const auto entry = entries_.find(name);
  if (entry == entries_.end()) throw std::runtime_error("state has no entry '" + std::string(name) + "'");
  return entry->second;
}

const StateWriter::Entry& StateReader::find(std::string_view name, char type) const {
  const auto& entry = find(name);
  if (entry.type != type)
    throw std::runtime_error("state entry '" + std::string(name) + "' is of another type");
  return entry;
}

StateReader::Type StateReader::type(std::string_view name) const {
  return static_cast<Type>(find(name).type);
}

bool StateReader::contains(std::string_view name) const {
  return entries_.find(name) != entries_.end();
}

std::size_t StateReader::length(std::string_view name) const {
  return find(name, kFloats).bytes.size() / sizeof(float);
}

void StateReader::get(std::string_view name, Span<float> values) const {
  const auto& entry = find(name, kFloats);
  if (entry.bytes.size() != values.size_bytes()) {
    throw std::runtime_error("state entry '" + std::string(name) + "' has " +
                             std::to_string(entry.bytes.size() / sizeof(float)) + " values, expected " +
                             std::to_string(values.size()));
  }
  if (!entry.bytes.empty()) std::memcpy(values.data(), entry.bytes.data(), entry.bytes.size());
}

std::uint64_t StateReader::get_integer(std::string_view name) const {
  std::uint64_t value = 0;
  std::memcpy(&value, find(name, kInteger).bytes.data(), sizeof value);
  return value;
}

double StateReader::get_real(std::string_view name) const {
  double value = 0;
  std::memcpy(&value, find(name, kReal).bytes.data(), sizeof value);
  return value;
}

std::string StateReader::get_text(std::string_view name) const {
  return text_in(find(name, kText).bytes);
}

std::optional<StateKind> StateReader::declaration(std::string_view kind) const {
  const std::string name = kDeclaration + std::string(kind);
  if (!contains(name)) return std::nullopt;
  const std::string text = get_text(name);
  for (std::size_t unit = 0; unit < kUnits.size(); ++unit) {
    for (std::size_t ranks = 0; ranks < kRanks.size(); ++ranks) {
      for (const bool moves : {false, true}) {
        const StateKind candidate{.name = kind,
                                  .unit = static_cast<StateKind::Unit>(unit),
                                  .ranks = static_cast<StateKind::Ranks>(ranks),
                                  .moves = moves};
        if (text_of(candidate) == text) return candidate;
      }
    }
  }
  throw std::runtime_error("the state says '" + text + "' of '" + std::string(kind) +
                           "', which this version does not understand");
}

std::vector<std::string> StateReader::names(std::string_view prefix) const {
  std::vector<std::string> result;
  for (auto entry = entries_.lower_bound(prefix); entry != entries_.end(); ++entry) {
    if (!std::string_view(entry->first).starts_with(prefix)) break;
    result.push_back(entry->first);
  }
  return result;
}

}  // namespace thinwire
