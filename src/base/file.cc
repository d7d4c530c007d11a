#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"

namespace linattn {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

[[noreturn]] void FailErrno(std::string_view where, const char* verb, const std::string& path) {
  const int error = errno;
  const bool callers = error == ENOENT || error == EACCES || error == EISDIR || error == ENOTDIR ||
                       error == EPERM || error == ENAMETOOLONG || error == ELOOP;
  throw Error(where, fmt::format("cannot {} '{}': {}", verb, path, std::strerror(error)),
              callers ? Fault::kCaller : Fault::kInternal);
}

// Bytes read; fewer than `size` only at the end of the file.
size_t ReadUpTo(int fd, uint8_t* to, size_t size, std::string_view where, const std::string& path) {
  size_t done = 0;
  while (done < size) {
    const ssize_t n = ::read(fd, to + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) FailErrno(where, "read", path);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

void WriteAll(int fd, std::span<const uint8_t> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) FailErrno("file", "write", path);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

std::string DirectoryOf(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

void SyncDirectoryOf(const std::string& path) {
  const std::string directory = DirectoryOf(path);
  const Descriptor fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) FailErrno("file", "open the directory", directory);
  // Some file systems cannot sync directories and say EINVAL; the rename itself is still atomic
  // there.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) FailErrno("file", "sync", directory);
}

}  // namespace

Bytes ReadFile(const std::string& path, std::string_view where) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) FailErrno(where, "read", path);
  struct stat status;
  if (::fstat(fd.get(), &status) != 0) FailErrno(where, "read", path);
  if (S_ISREG(status.st_mode)) {
    Bytes bytes(static_cast<size_t>(status.st_size));
    bytes.resize(ReadUpTo(fd.get(), bytes.data(), bytes.size(), where, path));
    return bytes;
  }
  // A pipe or device: until its end, but not for ever.
  constexpr size_t kBlock = 1 << 16, kLimit = size_t{1} << 30;
  Bytes bytes;
  while (true) {
    const size_t before = bytes.size();
    Check(before < kLimit, where, "'{}' is not a regular file and gives more than {} bytes", path,
          kLimit);
    bytes.resize(before + kBlock);
    bytes.resize(before + ReadUpTo(fd.get(), bytes.data() + before, kBlock, where, path));
    if (bytes.size() < before + kBlock) return bytes;
  }
}

AtomicFile::AtomicFile(const std::string& path) : path_(path), written_(path) {
  struct stat status;
  const bool exists = ::stat(path.c_str(), &status) == 0;
  if (exists && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) {
    // A pipe or device, /dev/null say, must not be replaced by a file.
    fd_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  } else {
    written_ += ".tmp";
    fd_ = ::open(written_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  }
  if (fd_ < 0) FailErrno("file", "write", written_);
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (written_ != path_) ::unlink(written_.c_str());
}

void AtomicFile::Append(std::span<const uint8_t> bytes) { WriteAll(fd_, bytes, written_); }

void AtomicFile::Commit() {
  if (written_ == path_) {
    if (::close(std::exchange(fd_, -1)) != 0) FailErrno("file", "write", path_);
    return;
  }
  if (::fsync(fd_) != 0) FailErrno("file", "sync", written_);
  if (::close(std::exchange(fd_, -1)) != 0 || ::rename(written_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(written_.c_str());
    errno = error;
    FailErrno("file", "replace", path_);
  }
  SyncDirectoryOf(path_);
}

void WriteFileAtomic(const std::string& path, std::span<const std::span<const uint8_t>> parts) {
  AtomicFile file(path);
  for (const auto& part : parts) file.Append(part);
  file.Commit();
}

void WriteFileAtomic(const std::string& path, std::span<const uint8_t> bytes) {
  WriteFileAtomic(path, std::span<const std::span<const uint8_t>>(&bytes, 1));
}

void WriteFileAtomic(const std::string& path, std::string_view text) {
  WriteFileAtomic(path, AsBytes(text));
}

void CheckOut(const std::string& path, std::string_view where, std::string_view flag) {
  if (path.empty() || path == "-") return;
  struct stat status;
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    Check(!S_ISDIR(status.st_mode), where, "{} must be a file, but '{}' is a directory", flag,
          path);
    Check(::access(path.c_str(), W_OK) == 0, where, "{} must be writable, but '{}' is not", flag,
          path);
    return;
  }
  const std::string directory = DirectoryOf(path);
  const bool exists = ::stat(directory.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
  Check(exists, where, "{} must be in a directory that exists, but '{}' does not", flag, directory);
  Check(::access(directory.c_str(), W_OK | X_OK) == 0, where,
        "{} must be in a directory that can be written to, but '{}' is not one", flag, directory);
}

std::string Printable(std::string_view text) {
  constexpr size_t kLongest = 120;
  if (text.size() > kLongest)
    return Printable(text.substr(0, kLongest / 2)) + "..." +
           Printable(text.substr(text.size() - kLongest / 2));
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte < 0x20 || byte == 0x7F)
      result += fmt::format("\\x{:02x}", byte);
    else
      result += c;
  }
  return result;
}

}  // namespace linattn
