// thinwire: the command line. Exit status: 0 done, 1 failed, 2 wrong usage; one line on stderr says what and what to do.

#include <unistd.h>

#include <cstdio>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#include "apps/commands.h"
#include "thinwire/errors.h"
#include "thinwire/version.h"

namespace {

void complain(std::string message) {
  for (char& c : message) {
    if (c == '\n') c = ' ';
  }
  std::fflush(stdout);
  std::fprintf(stderr, "thinwire: %s\n", message.c_str());
  std::fflush(stderr);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Synchronizes gradients over thin wires: trains, measures and compares."};
  app.name("thinwire");
  app.set_version_flag("--version", thinwire::kVersion);
  app.require_subcommand(1);
  thinwire::apps::add_train_command(app);
  thinwire::apps::add_bench_command(app);
  thinwire::apps::add_systems_command(app);
  thinwire::apps::add_launch_command(app);
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::RuntimeError& status) {  // a command's own exit status
    return status.get_exit_code();
  } catch (const CLI::ParseError& error) {
    complain(std::string(error.what()) + "; see thinwire --help");
    return 2;
  } catch (const thinwire::CommError& error) {
    complain(error.what());
    // Engines whose peer is gone may wait for it for ever in their destructors: nothing more is torn down.
    _exit(1);
  } catch (const std::invalid_argument& error) {
    complain(error.what());
    return 2;
  } catch (const std::bad_alloc&) {
    complain("out of memory: use fewer elements, workers or a smaller batch");
    return 1;
  } catch (const std::exception& error) {
    complain(error.what());
    return 1;
  }
}
