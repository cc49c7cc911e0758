"""
Classify series
===============

Six channels of a sensor on the wrist, four activities. `MVPAClassifier` follows sktime's interface.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import ConfusionMatrixDisplay
from sktime.datasets import load_basic_motions

from mvpa_ts.adapters.sktime import MVPAClassifier

X_train, y_train = load_basic_motions(split="train", return_type="numpy3D")
X_test, y_test = load_basic_motions(split="test", return_type="numpy3D")

# %%
# The defaults train longer; these few steps are enough here. Series may differ in length and have gaps.

classifier = MVPAClassifier(max_steps=60, random_state=0).fit(X_train, y_train)
predicted = classifier.predict(X_test)
print("accuracy:", np.mean(predicted == y_test))

# %%
figure, axis = plt.subplots(figsize=(5, 4))
ConfusionMatrixDisplay.from_predictions(y_test, predicted, ax=axis, cmap="Blues", colorbar=False)
axis.tick_params("x", rotation=30)
plt.show()
