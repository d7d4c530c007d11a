#include "kernels/feature_map.h"

#include <vector>

#include "base/error.h"
#include "kernels/favor_map.h"
#include "kernels/feature_map_table.h"

namespace linattn {

std::span<const FeatureMap* const> AllFeatureMaps() {
  static const std::vector<const FeatureMap*> maps = [] {
    std::vector<const FeatureMap*> all;
    for (const auto& group : {ElementwiseMaps(), NormalisedMaps(), ProductMaps()})
      all.insert(all.end(), group.begin(), group.end());
    all.push_back(&DefaultFavorMap());
    return all;
  }();
  return maps;
}

std::string FeatureMapNames() {
  std::string names;
  for (const FeatureMap* map : AllFeatureMaps())
    names.append(names.empty() ? "" : ", ").append(map->name());
  return names;
}

const FeatureMap& FeatureMapByName(std::string_view name) {
  for (const FeatureMap* map : AllFeatureMaps())
    if (map->name() == name) return *map;
  Fail("feature_map", "the feature map must be one of {}, but is '{}'", FeatureMapNames(), name);
}

}  // namespace linattn
