#include "libs/common/unix_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/common/error.h"
#include "tests/testing/status_matchers.h"

namespace pageferry {
namespace {

const auto kInUse = StatusIs(absl::StatusCode::kUnavailable, Reason::kInUse);
const auto kBad = StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidField);

class UnixSocketTest : public testing::Test {
 protected:
  UnixSocketTest() {
    std::string folder = testing::TempDir() + "pageferry_unix_XXXXXX";
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    path_ = folder_ + "/s";
  }
  ~UnixSocketTest() override { std::filesystem::remove_all(folder_); }

  // Binds `path_` as a server would; the caller closes.
  int Bind() const {
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.c_str(), path_.size() + 1);
    EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(fd, 1), 0);
    return fd;
  }

  std::string folder_;
  std::string path_;
};

TEST_F(UnixSocketTest, OneHolderAtATimeAndNothingIsLeft) {
  {
    ASSERT_OK_AND_ASSIGN(const UnixSocketGuard guard, UnixSocketGuard::Acquire(path_));
    const auto second = UnixSocketGuard::Acquire(path_);
    EXPECT_THAT(second, kInUse);
    EXPECT_EQ(MetadataOf(second.status()).at("address"), "unix:" + path_);
    close(Bind());
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  EXPECT_THAT(UnixSocketGuard::Acquire(path_), IsOk());
}

TEST_F(UnixSocketTest, StaleSocketsGo) {
  close(Bind());  // as after kill -9
  ASSERT_TRUE(std::filesystem::exists(path_));
  ASSERT_OK_AND_ASSIGN(const UnixSocketGuard guard, UnixSocketGuard::Acquire(path_));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(UnixSocketTest, ALivingServerWithoutALockIsLeftAlone) {
  const int fd = Bind();
  EXPECT_THAT(UnixSocketGuard::Acquire(path_), kInUse);
  EXPECT_TRUE(std::filesystem::exists(path_));
  EXPECT_FALSE(std::filesystem::exists(path_ + ".lock"));
  close(fd);
}

TEST_F(UnixSocketTest, OtherFilesAreLeftAlone) {
  std::ofstream(path_) << "precious";
  EXPECT_THAT(UnixSocketGuard::Acquire(path_), kBad);
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(UnixSocketTest, BadPaths) {
  EXPECT_THAT(UnixSocketGuard::Acquire(""), kBad);
  EXPECT_THAT(UnixSocketGuard::Acquire(std::string(108, 'x')), kBad);
  EXPECT_THAT(UnixSocketGuard::Acquire(absl::string_view("a\0b", 3)), kBad);
  EXPECT_THAT(UnixSocketGuard::Acquire(folder_ + "/no/s"), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(UnixSocketTest, ModeIsNeverOpenToOthers) {
  ASSERT_OK_AND_ASSIGN(UnixSocketGuard guard, UnixSocketGuard::Acquire(path_));
  const auto mode = [this] {
    struct stat file{};
    EXPECT_EQ(stat(path_.c_str(), &file), 0);
    return file.st_mode & 0777;
  };
  const mode_t before = umask(0);
  {
    ScopedSocketUmask restricted;
    close(Bind());
  }
  EXPECT_EQ(umask(before), 0U);
  EXPECT_EQ(mode(), 0660U);
  EXPECT_EQ(chmod(path_.c_str(), 0777), 0);
  EXPECT_THAT(guard.RestrictMode(), IsOk());
  EXPECT_EQ(mode(), 0660U);
  UnixSocketGuard moved = std::move(guard);
  EXPECT_EQ(moved.path(), path_);
  EXPECT_THAT(UnixSocketGuard::Acquire(path_), kInUse);
}

}  // namespace
}  // namespace pageferry
