"""The names of the files of a trained model."""

MODEL, DESCRIBED = "model.keras", "settings.json"
# In a bundle: sorted hashes of the images of the cohort: (n,) uint64.
COHORT_IMAGES = "cohort_images.npy"
# In a bundle: how the cohort looked.
COHORT = "cohort.json"
