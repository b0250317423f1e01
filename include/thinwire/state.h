#pragma once
// What training must not lose at a restart, as named values in one self-checking file. Written with the
// values' exact bits: a resumed run continues bit for bit.

#include <cstdint>
#include <iosfwd>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/span.h"

namespace thinwire {

/// What a kind of state is: a system declares each of its own once, as a constant, and saves and loads by it.
/// Whatever treats states as a whole reads these declarations, which states carry along, and knows no names.
struct StateKind {
  enum class Unit : std::uint8_t {
    none,      ///< Relative, or about time: stays when the loss scale changes.
    gradient,  ///< Is multiplied by whatever gradients are multiplied by.
  };
  enum class Ranks : std::uint8_t {
    same,  ///< The same on all ranks.
    sum,   ///< A share of a sum over ranks, which other ranks share evenly: what is undelivered.
    mean,  ///< Each rank has its own; other ranks begin with the mean.
  };
  /// Of entries, "NAME/PARAMETER". Unique over systems. Lives as long as the program.
  std::string_view name;
  Unit unit = Unit::none;
  Ranks ranks = Ranks::same;
  /// Whether another system that knows this kind takes it over when the spec changes.
  bool moves = false;

  bool operator==(const StateKind&) const = default;
};

/// What a rank has not delivered yet: the kind that every Session keeps for its systems.
inline constexpr StateKind kResidual = {
    .name = "residual", .unit = StateKind::Unit::gradient, .ranks = StateKind::Ranks::sum, .moves = true};

class StateReader;

/// Collects named arrays. Names are unique; a scope prefixes them.
class StateWriter {
 public:
  void put(std::string_view name, Span<const float> values);
  void put(std::string_view name, std::uint64_t value);
  void put(std::string_view name, double value);
  void put(std::string_view name, std::string_view text);
  /// Writes what a kind is, as the text entry "kind/NAME"; once, however often it is called. Throws
  /// std::invalid_argument when the state has another declaration of that name.
  void declare(const StateKind& kind);

  /// Writes everything. Layout: magic "TWSTATE1", count, then per entry name, type, length and bytes, then a
  /// 64-bit checksum of all that came before; integers little-endian. Throws std::runtime_error if the stream
  /// fails.
  void write(std::ostream& stream) const;

  /// Writes an entry as another state has it. Throws as StateReader::type does.
  void copy(const StateReader& from, std::string_view name);

  /// Takes over the entries of another writer. One that both have must be the same, bit for bit (a step, a
  /// spec); otherwise throws std::invalid_argument naming it.
  void absorb(StateWriter&& other);

 private:
  friend class StateReader;
  struct Entry {
    char type;
    std::vector<std::byte> bytes;
    bool operator==(const Entry&) const = default;
  };
  void put_entry(std::string_view name, char type, const void* data, std::size_t bytes);
  std::map<std::string, Entry, std::less<>> entries_;
};

/// Reads what a StateWriter wrote.
class StateReader {
 public:
  /// Throws std::runtime_error, saying which part, if the stream is cut short or damaged.
  explicit StateReader(std::istream& stream);
  /// Reads what was never written to a stream.
  explicit StateReader(StateWriter&& writer) : entries_(std::move(writer.entries_)) {}

  enum class Type : char { floats = 'f', integer = 'i', real = 'd', text = 't' };
  /// Throws std::runtime_error when there is no such entry.
  Type type(std::string_view name) const;
  bool contains(std::string_view name) const;
  /// Throws std::runtime_error naming the entry when it is absent, of another type, or (for floats) of
  /// another length than `values`.
  void get(std::string_view name, Span<float> values) const;
  std::uint64_t get_integer(std::string_view name) const;
  double get_real(std::string_view name) const;
  std::string get_text(std::string_view name) const;
  /// What StateWriter::declare wrote about the kind; its name is `kind`'s memory. Empty in states that were
  /// saved before there were declarations. Throws std::runtime_error for a text that means nothing.
  std::optional<StateKind> declaration(std::string_view kind) const;
  /// Names that begin with `prefix`, in order.
  std::vector<std::string> names(std::string_view prefix) const;
  std::size_t length(std::string_view name) const;

 private:
  friend class StateWriter;
  const StateWriter::Entry& find(std::string_view name) const;
  const StateWriter::Entry& find(std::string_view name, char type) const;
  std::map<std::string, StateWriter::Entry, std::less<>> entries_;
};

/// A parameter inside a bucket; a bucket's parameters lie one after the other.
struct Parameter {
  std::string name;
  std::size_t elements = 0;
  /// Leading dimension of the parameter's shape, a divisor of elements: it is [rows x elements / rows], row
  /// after row. 0: not known, or without meaning.
  std::size_t rows = 0;

  bool operator==(const Parameter&) const = default;
};
using BucketLayout = std::vector<Parameter>;

/// Writes what belongs to buckets under the names of their parameters, so that it survives another grouping,
/// and with it what kind it is.
class BucketWriter {
 public:
  BucketWriter(StateWriter& writer, const std::vector<BucketLayout>& buckets)
      : writer_(writer), buckets_(buckets) {}

  /// One value per element of the bucket, split by parameter. No-op for an empty span.
  void elements(const StateKind& kind, std::uint32_t bucket, Span<const float> values);
  /// One value per parameter of the bucket.
  void values(const StateKind& kind, std::uint32_t bucket, Span<const float> values);
  /// Any number of values of one parameter, by its position in the bucket.
  void array(const StateKind& kind, std::uint32_t bucket, std::size_t parameter, Span<const float> values);

 private:
  void put(const StateKind& kind, const Parameter& parameter, Span<const float> values);

  StateWriter& writer_;
  const std::vector<BucketLayout>& buckets_;
};

/// Reads what a BucketWriter wrote, into the same or another grouping of the same parameters.
class BucketReader {
 public:
  enum class Kinds : std::uint8_t {
    all,
    moving,  ///< Those that move to another system.
  };
  /// `visible`: the buckets of whoever reads; empty: all. Other buckets, and other kinds than `kinds`, read
  /// as if nothing had been written.
  BucketReader(const StateReader& reader, const std::vector<BucketLayout>& buckets,
               std::vector<bool> visible = {}, Kinds kinds = Kinds::all)
      : reader_(reader), buckets_(buckets), visible_(std::move(visible)), kinds_(kinds) {}

  std::uint32_t buckets() const { return static_cast<std::uint32_t>(buckets_.size()); }
  /// It is what the reading session itself has just saved, in another unit of gradients
  /// (Session::scale_state). What no unit changes stays as it is: nothing was resumed.
  bool is_rescaled() const { return rescaled_; }
  void set_rescaled(bool rescaled) { rescaled_ = rescaled; }
  std::size_t bucket_elements(std::uint32_t bucket) const;
  /// What elements() does for a parameter without an entry when others of its bucket have one.
  enum class Absent { error, zeros };
  /// False, and values untouched, when no parameter of the bucket has an entry of this kind. Throws
  /// std::runtime_error naming the parameter when a length differs, or when some have and others do not and
  /// `absent` does not say what that means.
  bool elements(const StateKind& kind, std::uint32_t bucket, Span<float> values,
                Absent absent = Absent::error) const;
  /// One value per parameter. False, and values untouched, unless every parameter of the bucket has one: a
  /// bucket is made of several, of which some have not seen a finite step.
  bool values(const StateKind& kind, std::uint32_t bucket, Span<float> values) const;
  /// Reads what BucketWriter::array wrote for one parameter. False, and values untouched, when it has no
  /// entry of this kind. Throws std::runtime_error naming the parameter when the length differs.
  bool array(const StateKind& kind, std::uint32_t bucket, std::size_t parameter, Span<float> values) const;
  std::size_t parameters(std::uint32_t bucket) const { return buckets_.at(bucket).size(); }
  const Parameter& parameter(std::uint32_t bucket, std::size_t at) const {
    return buckets_.at(bucket).at(at);
  }

 private:
  bool visible(const StateKind& kind, std::uint32_t bucket) const {
    return (visible_.empty() || visible_[bucket]) && (kinds_ == Kinds::all || kind.moves);
  }
  std::size_t present(const StateKind& kind, std::uint32_t bucket) const;

  const StateReader& reader_;
  const std::vector<BucketLayout>& buckets_;
  std::vector<bool> visible_;
  Kinds kinds_;
  bool rescaled_ = false;
};

}  // namespace thinwire
