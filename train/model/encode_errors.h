// What encoding the frozen layers lost, over the model: for the screen, the log and the adapter's record.
#pragma once

#include <map>
#include <string>

#include "train/files/base_weights.h"

namespace slab::train {

class EncodeErrors {
  public:
    // One part of a tensor; a part that is read again replaces what it was.
    void add(const std::string& key, const EncodeReport& report) { reports_[key] = report; }

    bool empty() const { return reports_.empty(); }
    double mean() const;                      // of all elements together, relative
    double worst() const;                     // of one part
    const std::string& worst_tensor() const;  // its key; throws std::logic_error when empty

  private:
    std::map<std::string, EncodeReport> reports_;  // by the key of the TensorPart
};

}  // namespace slab::train
