// Runs the suites that this build and machine can run, and says which it skipped and why.
//
// Suites: cpu (builds for the CPU: their device memory is the host's, which such tests rely on), gpu (CUDA builds, one
// GPU), multi (CUDA builds, several GPUs). A run in which nothing ran fails. So does a run with REQUIRE_GPU=1 in the
// environment that cannot run the suite gpu: a test that silently did not run proves nothing. The last line is always
// `N passed, N failed, N skipped`, counted in test cases.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "kernels/runtime/runtime.h"

#if defined(__SANITIZE_ADDRESS__)
// Tests ask for absurd amounts of memory and want the refusal, not the sanitizer's abort.
extern "C" const char* __asan_default_options() {
    return "allocator_may_return_null=1";
}
#endif
#if defined(__SANITIZE_THREAD__)
extern "C" const char* __tsan_default_options() {
    return "allocator_may_return_null=1";
}
#endif

namespace {

struct Counts {
    unsigned ran = 0, failed = 0;
    std::map<std::string, unsigned> skipped;  // by suite
    std::string suite;                        // of the test case that runs now
};
Counts counts;  // doctest makes its listeners itself, so they can only reach a global

struct Counter : doctest::IReporter {
    explicit Counter(const doctest::ContextOptions&) {}
    void report_query(const doctest::QueryData&) override {}
    void test_run_start() override {}
    void test_run_end(const doctest::TestRunStats& stats) override {
        counts.ran = stats.numTestCasesPassingFilters;
        counts.failed = stats.numTestCasesFailed;
    }
    void test_case_start(const doctest::TestCaseData&) override {}
    void test_case_reenter(const doctest::TestCaseData&) override {}
    void test_case_end(const doctest::CurrentTestCaseStats&) override {}
    void test_case_exception(const doctest::TestCaseException&) override {}
    void subcase_start(const doctest::SubcaseSignature&) override {}
    void subcase_end() override {}
    void log_assert(const doctest::AssertData&) override {}
    void log_message(const doctest::MessageData&) override {}
    void test_case_skipped(const doctest::TestCaseData& data) override { ++counts.skipped[data.m_test_suite]; }
};

REGISTER_LISTENER("counter", 1, Counter);

// Why a suite cannot run here; empty when it can.
std::string obstacle(const std::string& suite, int gpus) {
    if (slab::kBackend == slab::Backend::cpu) {
        if (suite == "gpu" || suite == "multi") return "this build is for the CPU (make BACKEND=cuda)";
        return "";
    }
    if (suite == "cpu") return "this build is for CUDA (make BACKEND=cpu)";
    if (gpus == 0) return "this build is for CUDA and no usable GPU is here";
    if (suite == "multi" && gpus < 2) return "it needs two GPUs, one is here";
    return "";
}

}  // namespace

int main(int argc, char** argv) {
    const int gpus = slab::kBackend == slab::Backend::cuda ? slab::device_count() : 0;
    doctest::Context context;
    context.setOption("no-intro", true);
    context.setOption("no-version", true);
    context.setOption("minimal", true);
    context.applyCommandLine(argc, argv);
    std::map<std::string, std::string> obstacles;
    for (const char* suite : {"cpu", "gpu", "multi"}) {
        const std::string why = obstacle(suite, gpus);
        if (why.empty()) continue;
        obstacles[suite] = why;
        context.addFilter("test-suite-exclude", suite);
    }
    bool failed = context.run() != 0;
    if (context.shouldExit()) return failed;  // a query such as --list-test-cases

    unsigned skipped = 0;
    for (const auto& [suite, number] : counts.skipped) {
        skipped += number;
        const auto why = obstacles.find(suite);
        std::printf("skipped: suite %s, %u test case%s: %s\n", suite.empty() ? "(none)" : suite.c_str(), number,
                    number == 1 ? "" : "s", why == obstacles.end() ? "left out by a filter" : why->second.c_str());
    }
    if (counts.ran == 0) {
        std::printf("FAIL: no test ran\n");
        failed = true;
    }
    const char* require_gpu = std::getenv("REQUIRE_GPU");
    if (require_gpu != nullptr && std::strcmp(require_gpu, "1") == 0 && obstacles.count("gpu") != 0) {
        std::printf("FAIL: REQUIRE_GPU=1, but %s\n", obstacles["gpu"].c_str());
        failed = true;
    }
    std::printf("%u passed, %u failed, %u skipped\n", counts.ran - counts.failed, counts.failed, skipped);
    return failed ? 1 : 0;
}
